"""The measured run and its assessment: launching and monitoring ranks, the verdict, results, diagnosis of stalls."""

"""The real run and its judge: launching and following ranks, verdict, results, diagnosis of stalls."""

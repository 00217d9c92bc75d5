"""The job as data: who is where, what each rank does and sends, what the network is told of it. Nothing runs here."""

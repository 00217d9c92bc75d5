"""Modules that users' own Python imports: the PyTorch backend, script capture, conformance suites for plug-ins."""

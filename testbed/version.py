"""Which version of the testbed this is."""

VERSION = "0.1.0"

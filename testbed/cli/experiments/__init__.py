"""What commands and the Python API do alike: run and report, explore and confirm, calibrate, reproduce."""

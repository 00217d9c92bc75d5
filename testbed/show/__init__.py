"""What people and other tools see of results: reports, the live page, import and export of foreign files."""

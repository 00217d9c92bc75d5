"""Presentation of results to users and other tools: reports, the live page, import and export of foreign files."""

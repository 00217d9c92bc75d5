"""Showing results: reports, the live page, and exchange with other tools."""

"""Collective algorithms: each module registers those of one family."""

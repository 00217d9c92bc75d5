"""What a user writes: topologies, scenarios, units, and catalogues of models and hardware."""

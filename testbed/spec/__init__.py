"""User input, parsed and checked: topologies, scenarios, job and link settings, units, catalogues."""

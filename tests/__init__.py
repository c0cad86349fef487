"""All tests: unit, property, store contract, command line, end to end."""

"""The store contract, held against a folder, moto and real servers."""

"""The same decisions under a virtual clock, and replay of recorded ones."""

"""Faults that no server makes on demand, played by a proxy in front of a real one."""

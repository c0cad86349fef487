"""The truth: events, keys, stores, facts, journal, projection and fair state."""

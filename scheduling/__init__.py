"""Pure decisions: policy, cost, disciplines, placement, decide."""

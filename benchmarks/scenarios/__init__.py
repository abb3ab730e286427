"""What is measured: one module per scenario, each with its targets."""

"""What only looks: agreement between ranks, the board, stacks. Nothing here moves a user's data."""

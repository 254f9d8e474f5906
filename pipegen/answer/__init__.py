"""What an answer holds, and whether it obeys its request."""

"""What breaks without heads, estimated from gradients; and how far to trust that."""

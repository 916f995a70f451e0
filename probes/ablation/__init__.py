"""What breaks without heads, exactly."""

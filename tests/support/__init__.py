"""What tests share: builders, stand-ins and drivers."""

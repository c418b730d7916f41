"""What every check is made of: reading, bound, finding, evidence, and the rounds that run them."""

"""What a failure means and what follows: blame, signatures, budget and the choice of the next recovery step."""

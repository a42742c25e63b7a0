"""Scripts that print every figure that README and docs claim; `make bench` runs them all in one go."""

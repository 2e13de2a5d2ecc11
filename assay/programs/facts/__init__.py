"""What a value of a program is, and what several illnesses ask of a graph: ratio, KL, masks, advantages, sampling."""

"""How long a step takes: one protocol, three sources, in order of trust calibrated, published, roofline."""

"""What a network is: a program of nodes, taken from `torch.export`."""

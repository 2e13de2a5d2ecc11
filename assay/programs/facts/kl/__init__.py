"""The KL to a reference: in the loss, in the reward, and the network it is measured against."""

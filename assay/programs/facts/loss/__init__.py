"""A loss: its terms, their signs, and how parts of a batch are put together."""

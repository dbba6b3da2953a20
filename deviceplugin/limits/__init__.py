"""What keeps a container within its share of a GPU: back ends of different strength behind one interface."""

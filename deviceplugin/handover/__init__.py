"""How a container gets the devices of its grant: what Allocate answers, and what is prepared before each start."""

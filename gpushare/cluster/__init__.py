"""Objects of a whole cluster -> the books of its nodes. Pure; shared by the controller and the command line."""

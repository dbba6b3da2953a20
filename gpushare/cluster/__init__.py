"""Objects of a whole cluster -> the ledgers of its nodes. Pure; shared by the controller and the command line."""

"""`gpushare doctor`: gather (reads only) -> checks (pure) -> render. Looks at a cluster and changes nothing in it."""

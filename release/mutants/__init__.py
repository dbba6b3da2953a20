"""Mutation testing: change the product in one place at a time and see whether a test notices.

`mutmut` and `cosmic-ray` do not serve here: they name a mutant by its number or its line, so that two trees cannot be
compared, draw no sample, choose no tests by the line, and leave out constants, properties and defaults, or start
Python for each mutant.
"""

PRODUCT = ("gpushare", "webhook", "controller", "deviceplugin", "certs", "gpushare_cli")
GENERATED = "deviceplugin/api/"
OPTIONS = (
    *("-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--hypothesis-profile=mutants", "--timeout=120"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # about what is loaded already
    *("-m", "not e2e and not browser and not soak and not lint"),
)

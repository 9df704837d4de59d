"""Schedulers with one defect each, and the tests of the contract that notice it."""

"""The apps are packed and sent by Flower; they are no modules of the tests."""

collect_ignore = ["deployed_app", "stock_app"]

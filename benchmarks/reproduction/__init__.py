"""The tables and figures of docs/reproduction.md, from the metrics in reproduction/.

page         reads the page's commands, runs them and renews what stands below them
rates        the client rates that the sweep's rule gives runs however they were made
steadiness   how much a result depends on the rule by which it is counted
"""

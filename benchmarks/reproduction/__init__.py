"""The tables and figures of docs/reproduction.md, from the metrics in reproduction/.

page         reads the page's commands, runs them and renews what stands below them
steadiness   how much a result depends on the rule by which it is counted
"""

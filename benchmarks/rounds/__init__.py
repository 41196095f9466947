"""What a round takes: contestants that take turns over the same workloads.

trainers            the table: fedvarp's trainers against bare loops over the same steps
overhead            the table of what a round takes beside local training
contest             who takes turns with whom, and what they are measured at
contestant          a process that runs rounds when it is told to: both ends of the line
process_tree        what a process and all its descendants take
workload            a workload in files, and its model
workloads           W1, W2 and W3
with_plain_torch    the contestants without a framework
with_fedvarp        fedvarp's own rounds; those of other packages are in benchmarks/peers
"""

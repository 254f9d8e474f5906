"""What a chat template writes, and whose words it writes: probes, guards, and the syntax of its parts."""

"""What the command-line programs share: their list, common flags, exit codes and progress bars."""

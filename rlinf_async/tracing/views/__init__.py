"""What people look at: files for trace viewers, and the words and rows of the live views."""

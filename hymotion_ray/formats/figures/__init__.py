"""The figure that pages, films and skinned files show: its surface, its motion, its picture."""

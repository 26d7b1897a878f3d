"""Model folders in every form people hold them; `checkpoint` is the way in."""

"""What a motion is: skeleton, rotations, features, decoding, quality. Knows no files, no ray."""

"""What a motion is: skeleton, rotations, features, decoding, mesh, quality. Knows no files, no ray."""

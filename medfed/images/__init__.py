"""Read one image or one mask of any supported file format: NIfTI, MHA, NRRD, 2-D images, DICOM series and DICOM SEG."""

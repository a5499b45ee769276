"""Folders as people have them and challenges distribute them: found with the right pairs, or refused with what helps.

An entry `NAME: FILES -> EXPECTED --set SETTING` may go on in indented lines. The files lie at the sites n and s, or
below the root if they begin with `/`. FOUND expects all pairs of the site n, as `CASES IMAGES MASKS`; with a setting,
the folder is refused without it. REFUSED expects words of the message.
"""

import pytest
from folder_layouts import Layout, expected_triples, layouts, make, refusal, triples

FOUND = r"""
images and masks: images/{a,b}.jpg masks/{a,b}.png -> {a,b} images/{a,b}.jpg masks/{a,b}.png
Image and Label: {Image,Label}/{a,b}.png -> {a,b} Image/{a,b}.png Label/{a,b}.png
Images and Ground Truth: {images,Ground_Truth}/{a,b}.png -> {a,b} images/{a,b}.png Ground_Truth/{a,b}.png
images and annotations: {images,annotations}/{a,b}.png -> {a,b} images/{a,b}.png annotations/{a,b}.png
images and seg, volumes: {images,seg}/{a,b}.nii.gz -> {a,b} images/{a,b}.nii.gz seg/{a,b}.nii.gz
other words at each site: /n/{images,masks}/{a,b}.png /s/{img,label}/{a,b}.png -> {a,b} images/{a,b}.png masks/{a,b}.png
masks of one site beside its images: /n/{images,masks}/{a,b}.png /s/{a,b}{,_seg}.png
    -> {a,b} images/{a,b}.png masks/{a,b}.png
a word after those for images and masks: images/img_ct_{1,2}.png masks/mask_ct_{1,2}.png
    -> ct_{1,2} images/img_ct_{1,2}.png masks/mask_ct_{1,2}.png
a word before the word for images: images/Test_Image_{1,2}.png masks/mask_{1,2}.png
    -> {1,2} images/Test_Image_{1,2}.png masks/mask_{1,2}.png
masks as GIF: images/{a,b}.png masks/{a,b}.gif -> {a,b} images/{a,b}.png masks/{a,b}.gif
top folders with the sites inside: /{Images,Masks}/{n,s}/{a,b}.png -> {a,b} /Images/n/{a,b}.png /Masks/n/{a,b}.png
nnU-Net with one channel: imagesTr/{a,b}_0000.png labelsTr/{a,b}.png
    -> {a,b} imagesTr/{a,b}_0000.png labelsTr/{a,b}.png
one nnU-Net case: imagesTr/p_01_0000.nii.gz labelsTr/p_01.nii.gz
    -> p_01 imagesTr/p_01_0000.nii.gz labelsTr/p_01.nii.gz
nnU-Net with test images: {imagesTr,imagesTs}/{a,b}_0000.png labelsTr/{a,b}.png
    -> {a,b} imagesTr/{a,b}_0000.png labelsTr/{a,b}.png
nnU-Net with labelled test images: {images,labels}Tr/{a,b}.png {images,labels}Ts/c.png
    -> {Tr/a,Tr/b,Ts/c} images{Tr/a,Tr/b,Ts/c}.png labels{Tr/a,Tr/b,Ts/c}.png
nnU-Net with two channels: imagesTr/{a,b}_{0000,0001}.png labelsTr/{a,b}.png
    -> {a,b} imagesTr/{a,b}_0000.png labelsTr/{a,b}.png --set ignored_names=['*_0001.*']
T2 and seg in one folder: P{1,2}_T2.nii P{1,2}_seg.nii -> P{1,2} P{1,2}_T2.nii P{1,2}_seg.nii
T2 and seg of names without a number: {k7x,9ab}_T2.jpg {k7x,9ab}_seg.png -> {k7x,9ab} {k7x,9ab}_T2.jpg {k7x,9ab}_seg.png
NAME and NAME_label: {a,b}.png {a,b}_label.png -> {a,b} {a,b}.png {a,b}_label.png
NAME and NAME-mask: {a,b}.png {a,b}-mask.png -> {a,b} {a,b}.png {a,b}-mask.png
img_1 and mask_1: img_{1,2,10}.png mask_{1,2,10}.png -> {1,2,10} img_{1,2,10}.png mask_{1,2,10}.png
a suffix of the masks: images/im000{1,2}.png labels/im000{1,2}ah.png
    -> im000{1,2} images/im000{1,2}.png labels/im000{1,2}ah.png
    --set image={site}/images/{case}.* --set mask={site}/labels/{case}ah.*
a suffix of a single mask: images/im0001.png labels/im0001.ah.png -> im0001 images/im0001.png labels/im0001.ah.png
    --set mask={site}/labels/{case}.ah.png
a suffix of the images: images/{a,b}.IMG.png masks/{a,b}.png -> {a,b} images/{a,b}.IMG.png masks/{a,b}.png
case folders with T2 and seg: {p1,p2}/p1_T2.nii {p1,p2}/p1_seg.nii -> {p1,p2}/p1 {p1,p2}/p1_T2.nii {p1,p2}/p1_seg.nii
visits with patients: {ses-1,ses-2}/{sub-1,sub-2}{,_seg}.nii
    -> {ses-1,ses-2}/{sub-1,sub-2} {ses-1,ses-2}/{sub-1,sub-2}.nii {ses-1,ses-2}/{sub-1,sub-2}_seg.nii
    --set image={site}/{visit}/{patient}.* --set mask={site}/{visit}/{patient}_seg.*
folders of the same patients: {A1,C2}/{sub-1,sub-2}{,_seg}.nii
    -> {A1,C2}/{sub-1,sub-2} {A1,C2}/{sub-1,sub-2}.nii {A1,C2}/{sub-1,sub-2}_seg.nii
    --set image={site}/{kind}/{patient}.* --set mask={site}/{kind}/{patient}_seg.*
images of two scanners: {3T,1.5T}/{1,2}{,_seg}.nii
    -> {3T,1.5T}/{1,2} {3T,1.5T}/{1,2}.nii {3T,1.5T}/{1,2}_seg.nii
    --set image={site}/{scanner}/{case}.nii --set mask={site}/{scanner}/{case}_seg.nii
numbered patients: /n/{T001,B12}/{1,2}{,_mask}.png /s/{T001,B13}/{1,2}{,_mask}.png
    -> {T001,B12}/{1,2} {T001,B12}/{1,2}.png {T001,B12}/{1,2}_mask.png
patients whose files have numbers, too: {patient1,patient2}/{sub1,sub2}{,_mask}.png
    -> {patient1,patient2}/{sub1,sub2} {patient1,patient2}/{sub1,sub2}.png {patient1,patient2}/{sub1,sub2}_mask.png
case folders with unlike names: {p1,p2}/scan.nii {p1,p2}/gland_label.nii
    -> {p1,p2} {p1,p2}/scan.nii {p1,p2}/gland_label.nii
case folders with unknown names: {p1,p2}/{scan,tumour}.nii -> {p1,p2} {p1,p2}/scan.nii {p1,p2}/tumour.nii
    --set image={site}/{case}/scan.nii --set mask={site}/{case}/tumour.nii
case folders with images and masks: {p1,p2}/{images,masks}/{1,2}.png
    -> {p1,p2}/{1,2} {p1,p2}/images/{1,2}.png {p1,p2}/masks/{1,2}.png
train and test: {train,test}/{images,masks}/{a,b}.png
    -> {train,test}/{a,b} {train,test}/images/{a,b}.png {train,test}/masks/{a,b}.png
images/train and masks/train: {images,masks}/{train,test}/{a,b}.png
    -> {train,test}/{a,b} images/{train,test}/{a,b}.png masks/{train,test}/{a,b}.png
parts above the sites: /{train,test}/{n,s}/{images,masks}/{a,b}.png
    -> {train,test}/{a,b} /{train,test}/n/images/{a,b}.png /{train,test}/n/masks/{a,b}.png
    --set image={part}/{site}/images/{case}.* --set mask={part}/{site}/masks/{case}.*
folders for each part: {test,trainval}-{image,mask}/{1,2}.png
    -> {test,trainval}/{1,2} {test,trainval}-image/{1,2}.png {test,trainval}-mask/{1,2}.png
    --set image={site}/{part}-image/{case}.png --set mask={site}/{part}-mask/{case}.png
masks in a folder beside the images: {a,b}.png masks/{a,b}.png -> {a,b} {a,b}.png masks/{a,b}.png
folders of unknown names: {raw,gt2}/{a,b}.png -> {a,b} raw/{a,b}.png gt2/{a,b}.png
    --set image={site}/RAW/{case}.* --set mask={site}/gt2/{case}.*
two mask folders, joined: images/{a,b}.png {masks,gt}/{a,b}.png
    -> {a,a,b,b} images/{a,a,b,b}.png {gt/a,masks/a,gt/b,masks/b}.png
    --set mask=["{site}/gt/{case}.png", "{site}/masks/{case}.png"]
two masks or more of an image, joined: images/{a,b}.png masks/{a_1,a_2,b_1}.png
    -> {a,a,b} images/{a,a,b}.png masks/{a_1,a_2,b_1}.png --set mask={site}/masks/{case}_{lesion}.png
a folder of masks for each image, joined: images/{a,b}.png masks/{a,b}/{1,2}.png
    -> {a,a,b,b} images/{a,a,b,b}.png masks/{a/1,a/2,b/1,b/2}.png --set mask={site}/masks/{case}/{lesion}.png
a folder of a single mask for each image: images/{a,b}.png masks/{a,b}/lesion.png
    -> {a,b} images/{a,b}.png masks/{a,b}/lesion.png --set mask={site}/masks/{case}/lesion.png
one of two raters: {1,2}{,_1stHO,_2ndHO}.png -> {1,2} {1,2}.png {1,2}_1stHO.png
    --set image={site}/{case}.png --set mask={site}/{case}_1stHO.png --set ignored_names=['*_2ndHO.*']
one of two readers: images/{a,b}.png masks/{reader1,reader2}/{a,b}.png -> {a,b} images/{a,b}.png masks/reader2/{a,b}.png
    --set mask={site}/masks/reader2/{case}.png
the only reader: images/{a,b}.png masks/reader1/{a,b}.png -> {a,b} images/{a,b}.png masks/reader1/{a,b}.png
    --set mask={site}/masks/*/{case}.png
one of two sequences: {p1,p2}/X_{T2,ADC,seg}.nii -> {p1,p2} {p1,p2}/X_T2.nii {p1,p2}/X_seg.nii
    --set image={site}/{case}/X_T2.nii --set mask={site}/{case}/X_seg.nii
one of two sequences in folders: images/{T1,T2}/{a,b}.png masks/{a,b}.png -> {a,b} images/T2/{a,b}.png masks/{a,b}.png
    --set image={site}/images/T2/{case}.png
two organs: {p1,p2}{,_liver,_spleen}.png -> {p1,p1,p2,p2} {p1,p1,p2,p2}.png {p1_liver,p1_spleen,p2_liver,p2_spleen}.png
    --set image={site}/{case}.png --set mask={liver: "{site}/{case}_liver.png", spleen: "{site}/{case}_spleen.png"}
both lungs: CXR_png/{1,2}.png ManualMask/{leftMask,rightMask}/{1,2}.png
    -> {1,1,2,2} CXR_png/{1,1,2,2}.png ManualMask/{leftMask/1,rightMask/1,leftMask/2,rightMask/2}.png
    --set image={site}/CXR_png/{case}.png --set mask={site}/ManualMask/{side}/{case}.png
both sides of a patient in one name: images/{7L,7R,8L}.png masks/{7L,7R,8L}_m.png
    -> {7/L,7/R,8/L} images/{7L,7R,8L}.png masks/{7L,7R,8L}_m.png
    --set image={site}/images/{patient}{eye:[LR]}.png --set mask={site}/masks/{patient}{eye:[LR]}_m.png
field of view beside vessels: images/{21,22}_training.tif 1st_manual/{21,22}_manual1.gif mask/{21,22}_training_mask.png
    -> {21,22} images/{21,22}_training.tif 1st_manual/{21,22}_manual1.gif
    --set image={site}/images/{case}_training.tif --set mask={site}/1st_manual/{case}_manual1.gif
the name of the case in a folder's name: {P1/P1,P2/P2}_photo/x.png {P1/P1,P2/P2}_lesion/y.png
    -> {P1,P2} {P1/P1,P2/P2}_photo/x.png {P1/P1,P2/P2}_lesion/y.png
    --set image={site}/{case}/{case}_photo/x.png --set mask={site}/{case}/{case}_lesion/y.png
JPEG images and PNG masks of the same name: {a,b}.{jpg,png} -> {a,b} {a,b}.jpg {a,b}.png
    --set image={site}/{case}.jpg --set mask={site}/{case}.png
letters in clear folders: images/p{0,1}_A.png masks/p{0,1}_B.png -> {p0,p1} images/p{0,1}_A.png masks/p{0,1}_B.png
    --set image={site}/images/{case}_A.png --set mask={site}/masks/{case}_B.png
masks by no word: {a,b}.png {a,b}gland.png -> {a,b} {a,b}.png {a,b}gland.png
    --set image={site}/{case}.png --set mask={site}/{case}gland.png
names that say what they are: Training_Input/{a,b}.jpg Training_Part/{a,b}_segmentation.png
    -> {a,b} Training_Input/{a,b}.jpg Training_Part/{a,b}_segmentation.png
    --set image={site}/Training_Input/{case}.jpg --set mask={site}/Training_Part/{case}_segmentation.png
spaces, brackets and umlauts: Bilder/x.txt images/b_(1)_ä.png masks/b_(1)_ä_mask.png
    -> b_(1)_ä images/b_(1)_ä.png masks/b_(1)_ä_mask.png
system files: images/{a.png,Thumbs.db,._a.png} masks/{a.png,.DS_Store} /__MACOSX/x.png -> a images/a.png masks/a.png
documents: {images,masks}/{a,b}.png notes/x.docx /{LICENSE,data.xlsx} -> {a,b} images/{a,b}.png masks/{a,b}.png
an empty folder with a usual name: {images,masks}/{a,b}.png labels/{a,b}.txt -> {a,b} images/{a,b}.png masks/{a,b}.png
a site that is called GT: /{n,s,GT}/{a,b}.png /{n,s,GT}/{a,b}_mask.png -> {a,b} {a,b}.png {a,b}_mask.png
fixed names: {p1,p2}/{T2,gland}.png -> {p1,p2} {p1,p2}/T2.png {p1,p2}/gland.png
    --set image={site}/{case}/t2.png --set mask={site}/{case}/GLAND.png
fixed names with a suffix: {p1,p2}/{T2.png,T2.jpg,gland.png} -> {p1,p2} {p1,p2}/T2.png {p1,p2}/gland.png
    --set image={site}/{case}/T2.png --set mask={site}/{case}/gland.*
overlays beside images and masks: images/{a,b}.png {masks,overlays}/{a,b}.png -> {a,b} images/{a,b}.png masks/{a,b}.png
    --set ignored_names=[overlays]
overlay files: {a,b}{,_mask,_overlay}.png -> {a,b} {a,b}.png {a,b}_mask.png --set ignored_names=['*_overlay.*']
figures beside the sites: {images,masks}/{1,2}.png /plots/{x,y}.png -> {1,2} images/{1,2}.png masks/{1,2}.png
    --set ignored_names=[plots]
a test part without masks: train/{images,masks}/{1,2}.png test/images/{3,4}.png
    -> train/{1,2} train/images/{1,2}.png train/masks/{1,2}.png --set ignored_names=[test]
3D Slicer: {p1,p2}/{T2.nrrd,Segmentation.seg.nrrd} -> {p1,p2} {p1,p2}/T2.nrrd {p1,p2}/Segmentation.seg.nrrd
3D Slicer beside NIfTI: {p1,p2}/{T2.nii.gz,Segmentation.seg.nrrd}
    -> {p1,p2} {p1,p2}/T2.nii.gz {p1,p2}/Segmentation.seg.nrrd
3D Slicer with two images: {p1,p2}/{DWI,ADC,Segmentation.seg}.nrrd
    -> {p1,p2} {p1,p2}/ADC.nrrd {p1,p2}/Segmentation.seg.nrrd
    --set image={site}/{case}/ADC.nrrd --set mask={site}/{case}/Segmentation.seg.nrrd
sites in the names: /{n,s}_{1,2,3,4,5}.png /{n,s}_{1,2,3,4,5}_mask.png
    -> {1,2,3,4,5} /n_{1,2,3,4,5}.png /n_{1,2,3,4,5}_mask.png
    --set image={site}_{case}.png --set mask={site}_{case}_mask.png
sites in the names, folders: /{images,masks}/{n,s}_{1,2,3,4,5}.png
    -> {1,2,3,4,5} /images/n_{1,2,3,4,5}.png /masks/n_{1,2,3,4,5}.png
    --set image=images/{site}_{case}.* --set mask=masks/{site}_{case}.*
sites in the names, anywhere: /images/{1,2}-{n,s}.png /gt/{1,2}-{n,s}.png -> {1,2} /images/{1,2}-n.png /gt/{1,2}-n.png
    --set image=images/{case}-{site}.* --set mask=gt/{case}-{site}.*
two folders for each site: /{n,s}_{images,masks}/{1,2}.png -> {1,2} /n_images/{1,2}.png /n_masks/{1,2}.png
    --set image={site}_images/{case}.png --set mask={site}_masks/{case}.png
sites in a folder: /all/{n,s}/{images,masks}/{a,b}.png -> {a,b} /all/n/images/{a,b}.png /all/n/masks/{a,b}.png
    --set image=all/{site}/images/{case}.png --set mask=all/{site}/masks/{case}.png
another pattern at a site: /n/{images,masks}/{1,2}.png /s/{x,y}/{1,2}.png -> {1,2} images/{1,2}.png masks/{1,2}.png
    --set by_site={s: {image: "{site}/x/{case}.png", mask: "{site}/y/{case}.png"}}
many patients of the same numbers at both sites:
    {01,02,03,04,05,06,07,08,09,10,11,12,13,14,15,16}/{images,masks}/1.png
    -> {01,02,03,04,05,06,07,08,09,10,11,12,13,14,15,16}/1
    {01,02,03,04,05,06,07,08,09,10,11,12,13,14,15,16}/images/1.png
    {01,02,03,04,05,06,07,08,09,10,11,12,13,14,15,16}/masks/1.png
a name continues one of another class: /n/common/p{1,2,3}.png /n/rare/p1_2.png /s/common/q1.png /s/rare/q2.png
    -> {common/p1,common/p2,common/p3,rare/p1_2} {common/p1,common/p2,common/p3,rare/p1_2}.png
names continue those of several other classes: /n/a/p1.png /n/b/q1.png /n/c/{p1_2,q1_2}.png /s/{a,b,c}/{0,8}.png
    /s/{a,b}/9.png -> {a/p1,b/q1,c/p1_2,c/q1_2} {a/p1,b/q1,c/p1_2,c/q1_2}.png
names continue the only one of another class: /n/dog/scan.png /n/cat/scan-{1,2}.png /s/dog/a.png /s/cat/b.png
    -> {dog/scan,cat/scan-1,cat/scan-2} {dog/scan,cat/scan-1,cat/scan-2}.png
classes: dog/d{1,2}.png cat/c{1,2}.png -> {dog/d1,dog/d2,cat/c1,cat/c2} {dog/d1,dog/d2,cat/c1,cat/c2}.png
classes, of which a site lacks one: dog/d{1,2}.png /n/cat/c1.png -> {dog/d1,dog/d2,cat/c1} {dog/d1,dog/d2,cat/c1}.png
classes in parts: train/{dog/a1,dog/a2,cat/b1}.png val/{dog/c1,cat/d1}.png
    -> {train/dog/a1,train/dog/a2,train/cat/b1,val/dog/c1,val/cat/d1}
    {train/dog/a1,train/dog/a2,train/cat/b1,val/dog/c1,val/cat/d1}.png
classes with equal names: {dog,cat}/{1,2}.png -> {dog,cat}/{1,2} {dog,cat}/{1,2}.png
    --set image={site}/{class}/{case}.png
classes beside an empty folder: {good/a1,good/a2,bad/b1}.png masks/.keep
    -> {good/a1,good/a2,bad/b1} {good/a1,good/a2,bad/b1}.png
classes in parts above the sites: /{train,test}/{n,s}/{dog/d,cat/c}1.png
    -> {train/dog/d1,train/cat/c1,test/dog/d1,test/cat/c1} /{train/n/dog/d,train/n/cat/c,test/n/dog/d,test/n/cat/c}1.png
    --set image={part}/{site}/{class}/{case}.*
"""
REFUSED = r"""
unknown folder of masks: {img,gt2}/{a,b}.png -> n/gt2/a.png
unknown images: {photos,masks}/{a,b}.png -> n/photos/a.png
two unknown folders: {left,right}/{a,b}.png -> n/left/a.png
two unknown folders of other names at each site: /n/{left,right}/{a,b}.png /s/{left,right}/{c,d}.png -> n/right/a.png
two unknown folders with the sites inside: /{left,right}/{n,s}/{a,b}.png
top folders, one with an unknown name: /{images,drawn}/{n,s}/{a,b}.png
only a folder of images: images/{a,b}.png -> n/images/a.png
a site without masks: /images/{n,s}/a.png /masks/n/a.png -> images/{site}/{case}.* | images/s/a.png
names that do not belong together: images/{x,y}.png masks/{u,v}.png
two sequences: {p1,p2}_{T2,ADC,seg}.nii -> n/p1_ADC.nii
two masks of an image: {a,b}{,_mask}.png a_mask_1.png -> {site}/{case}_mask.* | n/a_mask_1.png
two masks of an image with two words: a.png a_{mask,label}.png -> n/a_mask.png | n/a_label.png
an image without a mask: images/{a,b,c}.png masks/{a,b}.png -> n/images/c.png
a mask without an image: images/{a,b}.png masks/{a,b,c}.png -> n/masks/c.png
a single site: /{images,masks}/{a,b}.png -> if images and masks are the folders of one hospital
one site of nnU-Net: /imagesTr/a_0000.png /labelsTr/a.png /dataset.json
one site with its files: /{a,b}.png /{a,b}_mask.png
a single site by its files: /Input/{a,b}.png /Truth/{a,b}_mask.png
patients in the names: /{p1,p2}_{1,2,3,4,5}{,_mask}.png -> p1_1.png
one image of each site in the names: /{anna,bert}_1{,_mask}.png -> anna_1.png
a folder too high: /all/{n,s}/{images,masks}/{a,b}.png -> give the folder that contains the sites
sites far below: /data/train/{n,s}/{1,2}{,_mask}.png
sites of cases deeper: /all/{n,s}/{p1,p2}/{t2,seg}.nii
sites deeper, beside documents: /all/{n,s}/{1,2}{,_mask}.png /code/run.txt /LICENSE -> give the folder
masks of a format that is not supported: images/{a,b}.png masks/{a,b}.webp -> n/masks/a.webp, have a format
no file can be read: stare-images/im{1,2}.ppm.gz labels-ah/im{1,2}.ah.ppm.gz -> im1.ah.ppm.gz, have a format
a case folder without a mask: {p1,p2,p3}/T2.nii {p1,p2}/T2_seg.nii -> n/p3/T2.nii
one eye, other eye's mask: {p1,p2}/{left,right_mask}.png -> left.png | right_mask.png
two files of a fixed name: {p1,p2}/{t2.nii,t2.nii.gz,seg.nii} -> n/p1/t2.nii.gz: another image of the same case
    --set image={site}/{case}/t2.* --set mask={site}/{case}/seg.nii
field of view, equal names: images/{01_dr,02_h}.jpg manual1/{01_dr,02_h}.tif mask/{01_dr,02_h}_mask.tif
    -> n/manual1/01_dr.tif
a part with unlike names: {train,test}/{images,masks}/{a,b}.png val/{scan,gland_label}.png -> n/val/gland_label.png
mask folders, case: images/P1/a.png masks/{P1,p1}/a.png -> n/masks/p1/a.png
two folders of images that differ in case: images/{Pa,pA}/a.png masks/pa/a.png -> n/images/pA/a.png
a site with unusual names beside one with usual ones: /n/{images,masks}/{a,b}.png /s/{scan,drawn}/{a,b}.png
    -> no usual pattern pairs all files of s; those of | data.by_site={"n": {"image": "{site}/images/{case}.*", "mask"
patients in folders at one site only: /n/{p1,p2}/{images,masks}/1.png /s/{a,b}{,_seg}.png
two hospitals below a folder beside a site: /net/{x1,x2}/{images,masks}/1.png /s/{a,b}{,_seg}.png
files beside the folders of sites: /n/{images,masks}/a.png /s/{a,b}{,_seg}.png /x{,_mask}.png
a site beside top folders: /{images,masks}/A/1.png /B/images/2.png /B/masks/2.png -> images/A/1.png
a folder beside the files of a site: a{,_mask}.png more/b{,_mask}.png -> n/more/b.png
both lungs by a pattern without a field: CXR_png/{1,2}.png ManualMask/{leftMask,rightMask}/{1,2}.png
    -> ManualMask/rightMask/1.png: another mask of the same case | ManualMask/leftMask/1.png
    --set image={site}/CXR_png/{case}.png --set mask={site}/ManualMask/*/{case}.png
organs in files of their own: {p1,p2}/ct.nii {p1,p2}/segmentations/{heart,liver,lung}.nii -> n/p1/ct.nii
outlines in a folder: images/{a,b}.png annotations/all.json
outlines beside the images: {a,b}.{png,json}
an empty folder of masks: images/{a,b}.png masks/.keep
parts of a split with classes: /train/{dog/a1,dog/a2,cat/b1}.png /test/{dog/c,cat/d}1.png
    -> the sites are test, train | parts of a split | data.sites: [test, train]
parts of a split with classes of equal names: /train/{dog,cat}/{1,2}a.png /test/{dog,cat}/{1,2}b.png /train/dog/3.png
a test part in the folder of images: images/{train,test}/{a,b}.png masks/train/{a,b}.png -> n/images/test/a.png
a test part beside masks: train/{1,2}{,_mask}.png test/{3,4}.png -> n/test/3.png
masks of other letters: {p0,p1}_{A,B_mask}.png
two letters in one folder: {p0,p1}_{A,B}.png -> n/p0_A.png
two readers: images/{1,2,3}.png masks/{1,2,3}_reader{1,2}.png -> n/masks/1_reader1.png
sides in folders: {images,masks}/{left,right}/{a,b}.png -> such as left and right | {patient}
two raters in folders: images/{a,b}.png masks/{rater1,rater2}/{a,b}.png -> n/masks/rater1/a.png
a folder of masks in each case: {p1,p2}/{CT,RTSTRUCT/GTV,RTSTRUCT/CTV}.nii -> n/p1/CT.nii
masks of one of two folders: {normal/normal,tumour/tumour}_{1,2}.png tumour_masks/tumour_{1,2}.png
masks with numbers: images/{a,b}.png masks/{a,b}_{1,2}.png
folds: /{fold1,fold2,fold3}/{images,masks}/{1,2}.png -> parts of a split | data.sites: [fold1, fold2, fold3]
parts inside: /{images,masks}/{train,val}/{1,2}.png -> parts of a split | [train, val]
one part: /train/{images,masks}/{1,2}.png -> parts of a split
a part beside sites: /{north,south,test_set}/{images,masks}/{1,2}.png -> data.sites: [north, south, test_set]
patients in parts: /{train/p1,train/p2,test/p3}/{images,masks}/{1,2}.png -> parts of a split
a single part above the sites: /train/{x,y}/{images,masks}/{1,2}.png -> give the folder that contains the sites
years: /{2019,2020}/{images,masks}/{1,2}.png -> years | ['2019', '2020']
patients: /{patient_01,patient_02}/{images,masks}/{1,2}.png -> look like patients | [patient_01, patient_02]
part folders: /{images,masks}_{train,val}/{1,2}.png
case folders with an unknown word for masks: {p1/p1,p2/p2,p3/p3}{,_lesion}.png
case folders with two fixed names: {p1,p2,p3}/{flair,lesion}.png
case folders of other names at each site: /n/{ann,bea,cat}/{1,2,3,4,5}.png /s/{dan,eva,fay}/{1,2,3,4,5}.png
modalities in folders: {flair,t2}/{images,masks}/{p001,p002}.png -> such as flair and t2 | {patient}
visits in folders: {p01_v1,p01_v2,p02_v1,p02_v2}/{images,masks}/{1,2}.png -> such as p01_v1 and p01_v2
magnifications: {10X,20X}/{images,masks}/{1,2}.png -> such as 10X and 20X | {patient}
grades of CT: CT-{1,2}/c{1,2}{,_mask}.png -> such as CT-1 and CT-2 | {patient}
short names of patients as sites: /P{1,2}/{1,2}{,_mask}.png -> look like patients
patients with dates as sites: /{TCGA_CS_4941_19960909,TCGA_HT_7473_19970826,TCGA_DU_5_19980101}/{1,2}{,_mask}.png
    -> look like patients
images and masks by unknown names that continue, one patient: {photo/1,lesion/1_lesion}.bmp -> {site}
masks of some images by unknown names that continue: {photo/1,photo/2,photo/3,lesion/2_a,lesion/2_b}.png -> {site}
patients with dates first as sites: /{20200131_anna,20200201_bob,20200204_carl}/{1,2}{,_mask}.png -> look like patients
patients with days first as sites: /{anna_01021996,bob_02021996,carl_03031997}/{1,2}{,_mask}.png -> look like patients
images and masks by unknown names that continue: {photo/1,photo/2,lesion/1_lesion,lesion/2_lesion}.bmp -> {site}
grades, of which a site lacks one: /n/BIRADS{2,3,4}/{images,masks}/{1,2}.png /s/BIRADS{2,3}/{images,masks}/{1,2}.png
    -> such as BIRADS2 and BIRADS3 | {patient}
magnifications, of which a site lacks one: /n/{10X,20X,40X}/{1,2}{,_mask}.png /s/{10X,20X}/{1,2}{,_mask}.png
    -> such as 10X and 20X | {patient}
grades, of which no site has all: /n/BIRADS{2,3,4}/{images,masks}/{1,2}.png /s/BIRADS{3,4,5}/{images,masks}/{1,2}.png
    -> such as BIRADS2 and BIRADS3 | {patient}
classes of patients: {good,bad}/{x,y,z}/{1,2}.png -> {site}/{class}/{patient}/{case}
classes inside patients: {P1,P2,P3}/{good,bad}/{1,2}.png -> {site}/{patient}/{class}/{case}
classes, too deep: {good,bad}/{x,y,z}/{v,w}/{1,2}.png -> {site}/{class}/{case}
numbered patients as sites: /{TCGA_0001,TCGA_0002,TCGA_0003}/{1,2}{,_mask}.png -> look like patients
images and masks of patients by unknown names: {P1,P2}/{raw,drawn}/{a,b}.png -> {site}
eyes in folders: {images,labels}_{left,right}/{1,2}.png -> {site}
one image without a mask: images/{a,b,c,d,e,f}.png masks/{a,b,c,d,e}.png /s/masks/f.png -> n/images/f.png: | no mask
two of ten images without a mask: images/{a,b,c,d,e}.png masks/{a,b,c,d}.png -> 8 | n/images/e.png
modalities in folders, without one mask: {flair,t2}/images/p00{1,2,3,4,5,6}.png flair/masks/p00{1,2,3,4,5,6}.png
    t2/masks/p00{1,2,3,4,5}.png /s/t2/masks/p006.png -> n/t2/images/p006.png
two files of an image in a class: dog/d1.{png,jpg} dog/d{2,3,4,5,6,7,8,9}.png cat/c{1,2}.png
    -> n/dog/d1.png: another image of the same case: n/dog/d1.jpg
years as folders of a site: {2019,2020}/{images,masks}/{1,2}.png -> such as 2019 and 2020 | {patient}
"""


@pytest.mark.parametrize("layout", layouts(FOUND))
def test_a_layout_is_found_with_the_right_pairs_by_a_usual_pattern_or_by_the_given_lines(layout: Layout, tmp_path):
    dataset = layout.dataset(make(tmp_path, layout.files))
    assert {"n", "s"} <= {*dataset.site_names()} <= {"n", "s", "GT"} and dataset.cases("s")
    assert triples(dataset) == expected_triples(layout.expected)
    assert refusal(tmp_path, layout) == ""
    assert not layout.settings or refusal(tmp_path)


@pytest.mark.parametrize("layout", layouts(REFUSED))
def test_a_layout_is_refused_with_what_is_left_over(layout: Layout, tmp_path):
    message = refusal(make(tmp_path, layout.files), layout)
    assert [words for words in (str(tmp_path), *layout.expected.split(" | ")) if words not in message] == [], message

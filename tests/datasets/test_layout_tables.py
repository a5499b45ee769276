"""Folders as people have them and challenges distribute them: found with the right pairs, or refused with what helps.

An entry `NAME: FILES -> EXPECTED --set SETTING` may go on in indented lines. The files lie at the sites n and s, or
below the root if they begin with `/`. Expected is a pair of the site n as `CASE IMAGE MASK`, or words of the message.
"""

import pytest
from folder_layouts import Layout, layouts, make

from medfed.core.errors import UserError

FOUND = """
images and masks: images/{a,b}.jpg masks/{a,b}.png -> a images/a.jpg masks/a.png
img and mask: {img,mask}/{a,b}.png -> a img/a.png mask/a.png
imgs and labels: {imgs,labels}/{a,b}.png -> a imgs/a.png labels/a.png
Image and Label: {Image,Label}/{a,b}.png -> a Image/a.png Label/a.png
IMAGES and GT: {IMAGES,GT}/{a,b}.png -> a IMAGES/a.png GT/a.png
Images and Ground Truth: {images,Ground_Truth}/{a,b}.png -> a images/a.png Ground_Truth/a.png
images and annotations: {images,annotations}/{a,b}.png -> a images/a.png annotations/a.png
images and seg, volumes: {images,seg}/{a,b}.nii.gz -> a images/a.nii.gz seg/a.nii.gz
top folders with the sites inside: /{Images,Masks}/{n,s}/{a,b}.png -> a /Images/n/a.png /Masks/n/a.png
nnU-Net with one channel: imagesTr/{a,b}_0000.png labelsTr/{a,b}.png -> a_0000 imagesTr/a_0000.png labelsTr/a.png
one nnU-Net case: imagesTr/p_01_0000.nii.gz labelsTr/p_01.nii.gz
    -> p_01_0000 imagesTr/p_01_0000.nii.gz labelsTr/p_01.nii.gz
nnU-Net, the channel is set: imagesTr/{a,b}_{0000,0001}.png labelsTr/{a,b}.png
    -> a imagesTr/a_0000.png labelsTr/a.png --set image_name='*_0000'
T2 and seg in one folder: P{1,2}_T2.nii P{1,2}_seg.nii -> P1_T2 P1_T2.nii P1_seg.nii
NAME and NAME_label: {a,b}.png {a,b}_label.png -> a a.png a_label.png
NAME and NAME-mask: {a,b}.png {a,b}-mask.png -> a a.png a-mask.png
img_1 and mask_1: img_{1,2,10}.png mask_{1,2,10}.png -> img_1 img_1.png mask_1.png
a suffix of the masks: images/im000{1,2}.png labels/im000{1,2}ah.png -> im0001 images/im0001.png labels/im0001ah.png
a common suffix of a single mask: images/im0001.png labels/im0001ah.png -> im0001 images/im0001.png labels/im0001ah.png
a suffix of the images: images/{a,b}.IMG.png masks/{a,b}.png -> a.IMG images/a.IMG.png masks/a.png
case folders with T2 and seg: {p1,p2}/p1_T2.nii {p1,p2}/p1_seg.nii -> p1 p1/p1_T2.nii p1/p1_seg.nii
case folders with unlike names: {p1,p2}/scan.nii {p1,p2}/gland_label.nii -> p1 p1/scan.nii p1/gland_label.nii
case folders with images and masks: {p1,p2}/{images,masks}/{1,2}.png -> p1/1 p1/images/1.png p1/masks/1.png
train and test: {train,test}/{images,masks}/{a,b}.png -> train/a train/images/a.png train/masks/a.png
images/train and masks/train: {images,masks}/{train,test}/{a,b}.png -> test/a images/test/a.png masks/test/a.png
masks in a folder beside the images: {a,b}.png masks/{a,b}.png -> a a.png masks/a.png
folder names are set: {raw,gt2}/{a,b}.png -> a raw/a.png gt2/a.png --set image_folders=[RAW] --set mask_folders=[gt2]
one mask folder is set: images/{a,b}.png {masks,gt}/{a,b}.png -> a images/a.png gt/a.png --set mask_folders=[gt]
a rater is set: {1,2}{,_1stHO,_2ndHO}.png
    -> 1 1.png 1_1stHO.png --set mask_name='*_1stHO' --set ignored_names=['*_2ndHO.*']
the sequence is set: {p1,p2}/X_{T2,ADC,seg}.nii -> p1 p1/X_T2.nii p1/X_seg.nii --set image_name='*_T2'
JPEG images and PNG masks of the same name, set: {a,b}.{jpg,png} -> a a.jpg a.png --set mask_name='*.png'
spaces, brackets and umlauts: Bilder/x.txt images/b_(1)_ä.png masks/b_(1)_ä_mask.png
    -> b_(1)_ä images/b_(1)_ä.png masks/b_(1)_ä_mask.png
system files: images/{a.png,Thumbs.db,._a.png} masks/{a.png,.DS_Store} /__MACOSX/x.png -> a images/a.png masks/a.png
an empty folder with a usual name: {images,masks}/{a,b}.png labels/{a,b}.txt -> a images/a.png masks/a.png
a site that is called GT: /{n,s,GT}/{a,b}.png /{n,s,GT}/{a,b}_mask.png -> a a.png a_mask.png
fixed names, other case: {p1,p2}/{T2,gland}.png -> p1 p1/T2.png p1/gland.png --set image_name=t2 --set mask_name=GLAND
fixed names with a suffix: {p1,p2}/{T2.png,T2.jpg,gland.png}
    -> p1 p1/T2.png p1/gland.png --set image_name=T2.png --set mask_name=gland
all files of one folder are masks by their names: Training_Input/{a,b}.jpg Training_Part/{a,b}_segmentation.png
    -> a Training_Input/a.jpg Training_Part/a_segmentation.png
a reader is set: images/{a,b}.png masks/{reader1,reader2}/{a,b}.png
    -> a images/a.png masks/reader2/a.png --set mask_folders=[reader2]
the only folder in a folder of masks: images/{a,b}.png masks/reader1/{a,b}.png -> a images/a.png masks/reader1/a.png
a sequence is set: images/{T1,T2}/{a,b}.png masks/{a,b}.png -> a images/T2/a.png masks/a.png --set image_folders=[T2]
a reader, patients: images/{P1,P2}/{a,b}.png masks/{r1,r2}/{P1,P2}/{a,b}.png
    -> P1/a images/P1/a.png masks/r1/P1/a.png --set mask_folders=[r1]
folders of one lung each, set: CXR_png/{1,2}.png ManualMask/{leftMask,rightMask}/{1,2}.png
    -> 1 CXR_png/1.png ManualMask/leftMask/1.png --set image_folders=[CXR_png] --set mask_folders=[ManualMask, leftMask]
IDRiD, set: 1_Original_Images/{a_Training,b_Testing}/{1,2}.png 2_Groundtruths/{a_Training,b_Testing}/{MA,HE}/{1,2}.png
    -> a_Training/1 1_Original_Images/a_Training/1.png 2_Groundtruths/a_Training/MA/1.png --set
    image_folders=[1_Original_Images] --set mask_folders=[2_Groundtruths, MA]
a pattern of folder names: {P1/P1,P2/P2}_photo/x.png {P1/P1,P2/P2}_lesion/y.png
    -> P1 P1/P1_photo/x.png P1/P1_lesion/y.png --set image_folders=['*_photo'] --set mask_folders=['*_lesion']
one of three organs: {p1,p2}/ct.nii {p1,p2}/segmentations/{heart,liver,lung}.nii
    -> p1 p1/ct.nii p1/segmentations/liver.nii --set ignored_names=['heart.*', 'lung.*']
overlays beside images and masks: images/{a,b}.png {masks,overlays}/{a,b}.png -> a images/a.png masks/a.png
predictions beside images and masks: images/{a,b}.png {masks,model_predictions}/{a,b}.png -> a images/a.png masks/a.png
overlays as files, left out: {a,b}{,_mask,_overlay}.png -> a a.png a_mask.png --set ignored_names=['*_overlay.*']
a test part without masks, left out: train/{images,masks}/{1,2}.png test/images/{3,4}.png
    -> train/1 train/images/1.png train/masks/1.png --set ignored_names=[test]
3D Slicer: {p1,p2}/{T2.nrrd,Segmentation.seg.nrrd} -> p1 p1/T2.nrrd p1/Segmentation.seg.nrrd
3D Slicer beside NIfTI: {p1,p2}/{T2.nii.gz,Segmentation.seg.nrrd} -> p1 p1/T2.nii.gz p1/Segmentation.seg.nrrd
a folder of a single mask for each image: images/{a,b}.png masks/{a,b}/lesion.png -> a images/a.png masks/a/lesion.png
letters in clear folders: images/p{0,1}_A.png masks/p{0,1}_B.png -> p0_A images/p0_A.png masks/p0_B.png
"""
REFUSED = r"""
unknown folder of masks: {img,gt2}/{a,b}.png -> found gt2/ and img/; which holds the masks | data.mask_folders
unknown images: {photos,masks}/{a,b}.png -> found masks/ and photos/; which holds the images | data.image_folders
two unknown folders: {left,right}/{a,b}.png
    -> n/ and s/, both with the folders left/ and right/ and files of the same names; which holds the images |
    data.mask_folders: if n and s are the sites, such as [left] and [right] | folder_classes
two unknown folders of other names at each site: /n/{left,right}/{a,b}.png /s/{left,right}/{c,d}.png
    -> left/ (2 images) and right/ (2 images) with files of the same names | data.mask_folders | folder_classes
two unknown folders with the sites inside: /{left,right}/{n,s}/{a,b}.png
    -> found left/ and right/, both with the folders n/ and s/ | data.image_folders | if n and s are the sites, such as
    [left] and [right]
top folders, one with an unknown name: /{images,drawn}/{n,s}/{a,b}.png
    -> found drawn/ and images/; which holds the masks | data.mask_folders, such as [drawn]
two mask folders: images/{a,b}.png {masks,labels}/{a,b}.png
    -> labels/ and masks/; which holds the masks | data.mask_folders
only a folder of images: images/{a,b}.png -> found only the folder images/ | data.mask_folders
a site without masks: /images/{n,s}/a.png /masks/n/a.png -> images/s: there is no folder s in | masks; add it
names that do not belong together: images/{x,y}.png masks/{u,v}.png
    -> none of the 2 images (such as x.png) | 2 masks (such as u.png) | data.image_name | data.datalist
two channels: imagesTr/{a,b}_{0000,0001}.png labelsTr/{a,b}.png
    -> two channels of a case, a_0000.png and a_0001.png | data.image_name, such as '*_0000'
two sequences: {p1,p2}_{T2,ADC,seg}.nii
    -> p1_ADC.nii and p1_T2.nii, may belong to this mask | data.image_name, such as '*_ADC'
sequences of cases: {p1,p2}/X_{T2,ADC,seg}.nii -> X_ADC.nii and X_T2.nii, may belong to this mask | data.image_name
two masks of an image: {a,b}{,_mask}.png a_mask_1.png
    -> a_mask_1.png: is a second mask of the image a; a_mask.png is also one | data.ignored_names
two masks of an image with two words: a.png a_{mask,label}.png -> a_mask.png: is a second mask | a_label.png is also one
masks by no word: {a,b}.png {a,b}gland.png
    -> a.png and agland.png) | which files are the masks | data.mask_name, such as '*gland'
images and masks with other suffixes: {a,b}.{jpg,png} -> every name exists as .jpg and as .png | data.mask_name: '*.png'
an image without a mask: images/{a,b,c}.png masks/{a,b}.png -> c.png: this image has no mask | data.ignored_names
a mask without an image: images/{a,b}.png masks/{a,b,c}.png -> c.png: this mask has no image | data.ignored_names
a single site: /{images,masks}/{a,b}.png -> holds the folders images and masks | looks like a single site | give
one site of nnU-Net: /imagesTr/a_0000.png /labelsTr/a.png /dataset.json -> looks like a single site
one site with its files: /{a,b}.png /{a,b}_mask.png -> holds image files | looks like a single site
a folder too high: /all/{n,s}/{images,masks}/{a,b}.png
    -> the folder all is the only one | all instead | data.sites: [all]
parts of a split with the sites inside: /{train,test}/{n,s}/{images,masks}/{a,b}.png
    -> found the folders test and train, which look like parts of a split | data.datalist | data.sites:
masks of a format that is not supported: images/{a,b}.png masks/{a,b}.gif
    -> a.gif: this file format is not supported (as those of 1 other files ending in .gif | convert or remove
a case folder without a mask: {p1,p2,p3}/T2.nii {p1,p2}/T2_seg.nii -> p3/T2.nii: this image has no mask
one eye, other eye's mask: {p1,p2}/{left,right_mask}.png -> none of the 1 images (such as left.png) | right_mask.png
two files of a fixed name: {p1,p2}/{t2.nii,t2.nii.gz,seg.nii}
    -> p1/t2.nii.gz: another file has the same name: t2.nii | remove one | data.image_name --set image_name=t2 --set
    mask_name=seg
field of view beside vessels: images/{21,22}_training.png 1st_manual/{21,22}_manual1.png mask/{21,22}_training_mask.png
    -> n: found mask/ and 1st_manual/; which holds the masks? set data.mask_folders, such as [1st_manual]
field of view, equal names: images/{01_dr,02_h}.jpg manual1/{01_dr,02_h}.tif mask/{01_dr,02_h}_mask.tif
    -> n: found mask/ and manual1/; which holds the masks? set data.mask_folders, such as [manual1]
a part with one image and one mask of unlike names: {train,test}/{images,masks}/{a,b}.png val/{scan,gland_label}.png
    -> n/val: none of the 1 images (such as scan.png) | data.image_name
mask folders, case: images/P1/a.png masks/{P1,p1}/a.png -> masks/p1: there is no folder p1 in | images; add it
two folders of images that differ in case: images/{Pa,pA}/a.png masks/pa/a.png
    -> images/Pa: there is no folder Pa in | images/pA: there is no | masks/pa: there is no
a site beside top folders: /{images,masks}/A/1.png /B/images/2.png /B/masks/2.png
    -> found images/ and masks/ with the folders of the sites, and B/ with other images | data.ignored_names: [B]
a folder beside the files of a site: a{,_mask}.png more/b{,_mask}.png
    -> n/more: this folder holds image files and lies beside the image files of | data.ignored_names
a folder of masks for each reader: images/{a,b}.png masks/{reader1,reader2}/{a,b}.png
    -> n/masks: found reader1/ and reader2/; which holds the masks? set data.mask_folders, such as [reader1] |
    data.mask_values
a folder of images for each sequence: images/{T1,T2}/{a,b}.png masks/{a,b}.png
    -> n/images: found T1/ and T2/; which holds the images? set data.image_folders, such as [T1]
folders of one lung each: CXR_png/{1,2}.png ManualMask/{leftMask,rightMask}/{1,2}.png
    -> n: found CXR_png/ (2 images) and ManualMask/ (4 images) | such as [CXR_png] and [ManualMask]
folders of one lung each, half set: CXR_png/{1,2}.png ManualMask/{leftMask,rightMask}/{1,2}.png
    -> found leftMask/ and rightMask/; which holds the masks | [ManualMask, leftMask] --set image_folders=[CXR_png]
    --set mask_folders=[ManualMask]
IDRiD: 1_Original_Images/{a_Training,b_Testing}/{1,2}.png 2_Groundtruths/{a_Training,b_Testing}/{MA,HE}/{1,2}.png
    -> such as [1_Original_Images] and [2_Groundtruths] | data.datalist
case names: {P1/P1,P2/P2}_photo/x.png {P1/P1,P2/P2}_lesion/y.png -> such as ["*_photo"] and ["*_lesion"]
organs in files of their own: {p1,p2}/ct.nii {p1,p2}/segmentations/{heart,liver,lung}.nii
    -> p1/ct.nii: this image has 3 masks, such as heart.nii and liver.nii | data.mask_values | data.ignored_names, such
    as ['liver.nii', 'lung.nii']
organs beside their image: {p1,p2}{,_liver,_spleen}.png
    -> set data.mask_name, such as '*_liver', and data.ignored_names: ['*_spleen.*'] | data.mask_values
folders for each part: {test,trainval}-{image,mask}/{1,2}.png -> such as [test-image] and [test-mask] | data.datalist
case folders with two names that are no known words: {p1,p2}/{scan,tumour}.nii
    -> if each folder is a case, set data.image_name and data.mask_name, such as scan and tumour
masks of vessels as GIF: images/2{1,2}_training.tif 1st_manual/2{1,2}_manual1.gif mask/2{1,2}_training_mask.png
    -> found mask/ and 1st_manual/; which holds the masks? | .gif files in 1st_manual/ cannot be read; convert
no file can be read: stare-images/im{1,2}.ppm labels-ah/im{1,2}.ah.ppm
    -> im1.ppm: this file format is not supported | convert | data.ignored_names: ['*.ppm']
outlines in a folder: images/{a,b}.png annotations/all.json
    -> n/annotations: found no image file, only 1 .json file; expected a mask for each of the 2 images | draw
outlines beside the images: {a,b}.{png,json} -> 2 .json files in this folder are not read: draw the outlines
an empty folder of masks: images/{a,b}.png masks/.keep -> n/masks: found no image file; expected a mask for each
sites far below: /data/train/{n,s}/{1,2}{,_mask}.png -> n and s in data/train look like sites | data/train instead
sites of cases deeper: /all/{n,s}/{p1,p2}/{t2,seg}.nii
    -> n and s in all look like sites | all instead | data.sites: [all]
sites deeper, beside documents: /all/{n,s}/{1,2}{,_mask}.png /code/run.txt /LICENSE -> n and s in all look like sites
parts deeper: /data/{train,test}/{n,s}/{images,masks}/{1,2}.png -> found the folders test and train, which look like
parts of a split with classes: /train/{dog,cat}/{1,2}a.png /test/{dog,cat}/{1,2}b.png /train/dog/3.png
    -> found the folders test and train, which look like parts of a split | data.sites: [test, train]
two folders for each site: /{Nord,Sued}_{images,masks}/{1,2}.png
    -> found Nord_images/ and Nord_masks/, which look like the images and masks of a site | Nord/images
figures beside the sites: {images,masks}/{1,2}.png /plots/{x,y}.png
    -> plots: found 2 image files | if this folder holds no cases, leave it out with data.ignored_names: [plots]
a single site by its files: /Input/{a,b}.png /Truth/{a,b}_mask.png
    -> holds the folders Input and Truth, so it looks like a single
overlay files: {a,b}{,_mask,_overlay}.png -> a_overlay.png: this image has no mask | data.ignored_names: ['*_overlay.*']
a test part without masks: train/{images,masks}/{1,2}.png test/images/{3,4}.png
    -> n/test: found only the folder images/ | leave it out with data.ignored_names: [test]
a test part in the folder of images: images/{train,test}/{a,b}.png masks/train/{a,b}.png
    -> there is no folder test in | leave it out with data.ignored_names: [test]
a test part beside masks: train/{1,2}{,_mask}.png test/{3,4}.png -> leave it out with data.ignored_names: [test]
3D Slicer with two images: {p1,p2}/{DWI,ADC,Segmentation.seg}.nrrd
    -> if each folder is a case, set data.image_name: ADC and data.mask_name: Segmentation.seg
masks of other letters: {p0,p1}_{A,B_mask}.png
    -> none of the 2 images (such as p0_A.png) | if p0_A.png belongs to p0_B_mask.png, set data.image_name: '*_A' and
    data.mask_name: '*_B_mask'
two letters in one folder: {p0,p1}_{A,B}.png -> set data.mask_name and data.image_name, such as '*_B' and '*_A'
two readers: images/{1,2,3}.png masks/{1,2,3}_reader{1,2}.png
    -> 2_reader2.png: is a second mask of the image 2; 2_reader1.png is also one | data.ignored_names: ['*_reader2.*']
a folder of masks for each image: images/{a,b}.png masks/{a,b}/{1,2}.png
    -> n/masks: it holds a folder of masks for each image, such as a/ with 2 masks | set data.merge_masks: true
a folder of masks in each case: {p1,p2}/{CT,RTSTRUCT/GTV,RTSTRUCT/CTV}.nii
    -> each with image files such as CT.nii and a folder RTSTRUCT/ | set data.mask_folders: [RTSTRUCT]
a folder of masks in each case, set: {p1,p2}/{CT,RTSTRUCT/GTV,RTSTRUCT/CTV}.nii
    -> p1/CT.nii: this image has 2 masks, such as CTV.nii and GTV.nii | data.merge_masks: true --set
    mask_folders=[RTSTRUCT]
folders of classes beside an empty folder of masks: {good/a,bad/b}{1,2}.png masks/.keep
    -> masks/ holds no image; remove it if the images have classes and no masks
masks of one of two folders: {normal/normal,tumour/tumour}_{1,2}.png tumour_masks/tumour_{1,2}.png
    -> data.image_folders and data.mask_folders, such as [tumour] and [tumour_masks]
masks with numbers: images/{a,b}.png masks/{a,b}_{1,2}.png
    -> a_2.png: is a second mask of the image a; a_1.png is also one | set data.merge_masks: true | data.ignored_names:
    ['*_2.*']
folds: /{fold1,fold2,fold3}/{images,masks}/{1,2}.png
    -> found the folders fold1, fold2 and fold3, which look like parts of a split | into one folder with its name | set
    data.sites: [fold1, fold2, fold3]
parts inside: /{images,masks}/{train,val}/{1,2}.png -> found the folders train and val, which look like parts
one part: /train/{images,masks}/{1,2}.png -> found the folder train, which looks like a part
a part beside sites: /{north,south,test_set}/{images,masks}/{1,2}.png
    -> found the folder test_set | move these folders | data.sites: [north, south, test_set]
years: /{2019,2020}/{images,masks}/{1,2}.png
    -> found the folders 2019 and 2020, which look like years | ['2019', '2020']
patients: /{patient_01,patient_02}/{images,masks}/{1,2}.png -> patient_01 and patient_02, which look like patients
many patients: /{case1,case2,case3,case4,case5,case6,case7,case8,case9}/{images,masks}/{1,2}.png
    -> found the folders case1, case2 and 7 more, which | case8, ... (all 9 names)]
part folders: /{images,masks}_{train,val}/{1,2}.png -> move them to HOSPITAL/train/images and HOSPITAL/train/masks
years as folders of a site: {2019,2020}/{images,masks}/{1,2}.png
    -> n: its 2 patients, such as 2019 and 2020, look like years or dates | '(.+)' if each image is another
dates as patients by a pattern: {images,masks}/{20190101,20200203}_{1,2}.png
    -> such as 20190101 and 20200203, look like years --set patient_pattern='^(\d+)_'
"""


@pytest.mark.parametrize("layout", layouts(FOUND))
def test_a_layout_is_recognised_with_the_right_pairs(layout: Layout, tmp_path):
    """Each file is in one pair, and the site s has as many as the site n."""
    dataset = layout.dataset(make(tmp_path, layout.files))
    cases, problems = dataset.cases_and_problems("n")
    pairs = [
        (case.name, *(path.relative_to(tmp_path).as_posix() for path in (case.image, case.mask))) for case in cases
    ]
    case, *paths = layout.expected.split(" ")
    assert problems == [] and (case, *(path[1:] if path[0] == "/" else f"n/{path}" for path in paths)) in pairs
    assert len(dataset.cases("s")) == len(pairs) >= 1
    assert all(len(set(column)) == len(pairs) for column in zip(*pairs))


@pytest.mark.parametrize("layout", layouts(REFUSED))
def test_a_layout_is_refused_with_what_was_found_and_the_setting_that_helps(layout: Layout, tmp_path):
    make(tmp_path, layout.files)
    try:
        dataset = layout.dataset(tmp_path)
        message = "\n".join(text for site in dataset.site_names() for text in dataset.cases_and_problems(site)[1])
    except UserError as error:
        message = str(error)
    assert [words for words in (str(tmp_path), *layout.expected.split(" | ")) if words not in message] == [], message
